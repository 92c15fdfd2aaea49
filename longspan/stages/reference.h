// The reference model of preference training, which gives log-probabilities without gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "longspan/models/decoder.h"
#include "longspan/objectives/document_scores.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/stages/row.h"

namespace longspan {

class Reference {
 public:
  virtual ~Reference() = default;
  /// As document_logprobs of the row's documents, without gradient. Collective over the row's
  /// sequence group.
  virtual at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) = 0;
  /// Bytes of parameters that only the reference holds.
  virtual ShardedParameters::HeldBytes held_bytes() const { return {}; }
};

/// A model of its own. `sharded`: where its parameters come from, if from there.
std::unique_ptr<Reference> reference_model(std::unique_ptr<Decoder> model,
                                           std::unique_ptr<ShardedParameters> sharded = nullptr);

/// The trained model without its adapters, which must outlive it.
std::unique_ptr<Reference> base_model_reference(Decoder& model);

/// What was computed before: by Example::number, one value for each document of the example.
using ReferenceTable = std::unordered_map<int64_t, std::vector<double>>;
std::unique_ptr<Reference> reference_table(ReferenceTable table);

}  // namespace longspan
