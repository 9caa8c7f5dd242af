"""Evolution strategies on LoRA: the ladder, rung by rung, and what they forget and cost."""
