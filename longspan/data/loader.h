// Which rows a data-parallel group sees, in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/data/batch.h"

namespace longspan {

/// Not for use from several threads at once. Deals samples to data-parallel groups. The order of an
/// epoch depends on seed and epoch alone, never on the number of ranks: global micro-batch i holds
/// rows order[i * batch * groups ...], group g takes its `batch` rows of them in turn. The last one
/// may be smaller; a group may then get no rows at all.
class Loader {
 public:
  Loader(int64_t num_samples, int64_t rows_per_batch, int data_rank, int data_size, bool shuffle,
         int64_t seed);
  /// Global micro-batches of an epoch: ceil(samples / (rows_per_batch * data_size)).
  int64_t num_batches() const;
  /// Sample indices of this group's micro-batch of an epoch; may be empty.
  std::vector<int64_t> rows(int64_t epoch, int64_t batch) const;

 private:
  int64_t num_samples_, rows_per_batch_;
  int data_rank_, data_size_;
  bool shuffle_;
  int64_t seed_;
  // The order of the epoch that was asked for last, so that a batch costs O(rows).
  mutable std::vector<int64_t> order_;
  mutable int64_t order_epoch_ = -1;
};

}  // namespace longspan
