// The order of rows for a data-parallel group.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/rows/batch.h"

namespace longspan {

/// Distributes samples over data-parallel groups. Not thread-safe. The order of an epoch depends
/// only on seed and epoch, not on the number of ranks. Global micro-batch i has the rows from
/// order[i * rows_per_batch * data_size] on, and each data-parallel group in turn takes
/// rows_per_batch of these rows. The last micro-batch may be smaller, and a group may then get no
/// rows.
class Loader {
 public:
  Loader(int64_t num_samples, int64_t rows_per_batch, int data_rank, int data_size, bool shuffle,
         int64_t seed);
  /// Returns the number of global micro-batches of an epoch: ceil(num_samples / (rows_per_batch *
  /// data_size)).
  int64_t num_batches() const;
  /// Returns the sample indices of this group's micro-batch of an epoch; may be empty.
  std::vector<int64_t> rows(int64_t epoch, int64_t batch) const;

 private:
  int64_t num_samples_, rows_per_batch_;
  int data_rank_, data_size_;
  bool shuffle_;
  int64_t seed_;
  // The order of the latest requested epoch, so that a batch costs O(rows).
  mutable std::vector<int64_t> order_;
  mutable int64_t order_epoch_ = -1;
};

}  // namespace longspan
