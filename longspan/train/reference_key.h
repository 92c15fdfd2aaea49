// The key by which a run knows reference log-probabilities that were computed before.
#pragma once

#include <string>
#include <vector>

#include "longspan/data/example_set.h"

namespace longspan {

struct Config;

/// A hash of all that decides them: the reference model's files and those of its adapters, stage,
/// precision (which finetuning_type is part of), rope_scaling, and the examples' tokens, labels,
/// columns and positions. It leaves out what only changes roundings: the number of processes,
/// checkpointing, chunks, kernels.
std::string reference_key(const Config& config, const ExampleSet& examples);

}  // namespace longspan
