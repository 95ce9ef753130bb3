"""`python -m notela`: the command line where `notela` is not on the path."""

from notela.cli import main

if __name__ == "__main__":
    main()
