"""What is measured of a student once it is made."""
