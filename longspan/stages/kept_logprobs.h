// Log-probabilities of a batch's labels that several updates use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/stages/row.h"

namespace longspan {

/// Values of labels, stored by Example::number, so that the values do not depend on rows and ranks.
class KeptLogprobs {
 public:
  /// Keeps the values of a row. `values_L`: of this rank's labels, fp64. Collective over the row's
  /// sequence group.
  void keep(const Row& row, const at::Tensor& values_L, const SequenceParallel& attention,
            const Group& sequence);
  /// True if the values of all examples of the row are kept.
  bool has(const Row& row) const;
  /// Returns the values of this rank's labels, [L] fp64 on the row's device.
  at::Tensor of(const Row& row, const SequenceParallel& attention) const;
  void clear() { values_.clear(); }

  /// Returns the values of all ranks as text, the same on every rank. Collective.
  std::string text(const Mesh& mesh) const;
  /// Throws UserError if `text` is not a result of text().
  void load(const std::string& text);

 private:
  std::map<int64_t, std::vector<double>> values_;  // of an example's labels, in row order
};

}  // namespace longspan
