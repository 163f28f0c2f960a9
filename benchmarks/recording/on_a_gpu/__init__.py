"""What a real GPU says of efprof: one small GPT, bare against recorded, predicted against measured."""
