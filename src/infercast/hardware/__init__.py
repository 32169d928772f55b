"""What a GPU is: frozen specifications read from data files."""
