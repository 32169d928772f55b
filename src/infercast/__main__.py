"""``python -m infercast``."""

from infercast.cli.main import main

if __name__ == "__main__":
    main()
