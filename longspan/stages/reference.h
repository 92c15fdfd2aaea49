// The reference model of preference training: computes log-probabilities without gradients.
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
  /// Like document_logprobs for the row's documents, without gradients. Collective over the row's
  /// sequence group.
  virtual at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) = 0;
  /// Returns log p of the row's labels on this rank, [L] fp64, without gradients. `temperature`:
  /// divides the logits. Collective as document_logprobs(). Throws std::logic_error for a table,
  /// which has only sums.
  virtual at::Tensor token_logprobs(const Row& row, double temperature) = 0;
  /// Returns the reference as the teacher of Decoder::divergence_from(). Collective as
  /// document_logprobs(). Throws std::logic_error for a table.
  virtual TeacherHead teacher_head(const Row& row);
  /// Returns the bytes of parameters that only the reference holds.
  virtual ShardedParameters::HeldBytes held_bytes() const { return {}; }
};

/// Makes a reference with its own model, and the parts that the model refers to. `pictures`: null
/// if rows have no pictures. `sharded`: the source of the model's parameters, if they are sharded.
/// `follows_rows`: each pass uses the attention of its row (Row::attention); otherwise all passes
/// use the attention with which the model was made.
std::unique_ptr<Reference> reference_model(std::unique_ptr<Decoder> model,
                                           std::unique_ptr<PictureFeatures> pictures,
                                           std::unique_ptr<ShardedParameters> sharded,
                                           bool follows_rows);

/// Makes a reference from the trained model without its adapters. The model must outlive the
/// reference.
std::unique_ptr<Reference> base_model_reference(Decoder& model);

/// Precomputed log-probabilities: by Example::number, one value for each document of the example.
using ReferenceTable = std::unordered_map<int64_t, std::vector<double>>;
std::unique_ptr<Reference> reference_table(ReferenceTable table);

}  // namespace longspan
