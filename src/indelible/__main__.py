"""`python -m indelible`: what launchers of several processes start."""

from indelible.cli import main

if __name__ == "__main__":
    main()
