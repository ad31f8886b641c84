"""A second implementation of Streaming DiLoCo, in double precision, that shares no code with the
first: the model, the optimizers, the schedule, the codecs and the merge, written from the
algorithm's description and the codecs' format alone."""
