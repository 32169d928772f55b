"""``python -m infercast``."""

from infercast.cli.main import run

if __name__ == "__main__":
    run()
