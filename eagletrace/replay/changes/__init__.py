"""Small, named changes of a recipe, each tied to a cause.

`intended` is the draft as its checkpoint and configuration say. `departures` are what the trace shows that the engine
did otherwise, `hidden` what an engine may have done without leaving a fact, `repairs` what the training may have meant
otherwise than the files say.
"""
