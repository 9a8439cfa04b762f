"""`python -m ladr` is the `ladr` command."""

from ladr.cli import main

if __name__ == "__main__":
    main()
