"""`python -m gainstage`: the same as the command `gainstage`."""

from gainstage.cli.main import app

if __name__ == "__main__":
    app()
