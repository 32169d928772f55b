"""One question asked again along an axis: a rate, a number of clients, or any setting."""
