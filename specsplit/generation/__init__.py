"""What every service that generates does with a request, whoever asks: its prompt is read, its answer written and delivered."""
