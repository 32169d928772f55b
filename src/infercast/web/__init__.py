"""The page and the HTTP API of ``infercast web``; answers without any HTTP are in `infercast.web.answers`."""
