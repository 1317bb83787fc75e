"""Text to tokens and back: vocabulary, tokenizer, chat template, incremental detokeniser, stop strings. No torch, no transformers."""
