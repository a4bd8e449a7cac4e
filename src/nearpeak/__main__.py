"""`python -m nearpeak` is the command line."""

from nearpeak.cli.main import main

if __name__ == "__main__":
    main()
