#include "longspan/data/loader.h"

#include <algorithm>
#include <numeric>

#include "longspan/data/permutation.h"

namespace longspan {

Loader::Loader(int64_t num_samples, int64_t rows_per_batch, int data_rank, int data_size,
               bool shuffle, int64_t seed)
    : num_samples_(num_samples),
      rows_per_batch_(rows_per_batch),
      data_rank_(data_rank),
      data_size_(data_size),
      shuffle_(shuffle),
      seed_(seed) {}

int64_t Loader::num_batches() const {
  const int64_t rows = rows_per_batch_ * data_size_;
  return (num_samples_ + rows - 1) / rows;
}

std::vector<int64_t> Loader::rows(int64_t epoch, int64_t batch) const {
  if (shuffle_ && epoch != order_epoch_) {
    order_ = seeded_permutation(num_samples_, seed_, epoch);
    order_epoch_ = epoch;
  }
  const int64_t begin = std::min(num_samples_, (batch * data_size_ + data_rank_) * rows_per_batch_);
  const int64_t end = std::min(num_samples_, begin + rows_per_batch_);
  std::vector<int64_t> rows(end - begin);
  if (shuffle_) {
    std::copy(order_.begin() + begin, order_.begin() + end, rows.begin());
  } else {
    std::iota(rows.begin(), rows.end(), begin);
  }
  return rows;
}

}  // namespace longspan
