#include "longspan/data/batch.h"

#include <ATen/ATen.h>

namespace longspan {

namespace {

at::Tensor empty_row(int64_t num_tokens) { return at::empty({num_tokens}, at::kLong); }

}  // namespace

Batch collate(const std::vector<const Sample*>& samples) {
  std::vector<int64_t> lengths;
  lengths.reserve(samples.size());
  for (const Sample* sample : samples) lengths.push_back(std::ssize(sample->input_ids));

  Batch batch;
  batch.packing = Packing::from_lengths(lengths);
  const int64_t num_tokens = batch.packing.num_tokens();
  batch.tokens_T = empty_row(num_tokens);
  batch.labels_T = empty_row(num_tokens);
  batch.positions_T = empty_row(num_tokens);
  batch.documents_T = empty_row(num_tokens);
  int64_t* token = batch.tokens_T.mutable_data_ptr<int64_t>();
  int64_t* label = batch.labels_T.mutable_data_ptr<int64_t>();
  int64_t* position = batch.positions_T.mutable_data_ptr<int64_t>();
  int64_t* document = batch.documents_T.mutable_data_ptr<int64_t>();
  int64_t number = 0;
  for (const Sample* sample : samples) {
    const int64_t length = std::ssize(sample->input_ids);
    for (int64_t i = 0; i < length; ++i) {
      *token++ = sample->input_ids[i];
      *label++ = i + 1 < length ? sample->labels[i + 1] : kIgnoreLabel;
      *position++ = i;
      *document++ = number;
    }
    ++number;
  }
  return batch;
}

Batch shard(const Batch& row, const TokenOrder& order) {
  const int64_t num_local = std::ssize(order.index);
  Batch local{empty_row(num_local), empty_row(num_local), empty_row(num_local),
              empty_row(num_local), order.packing};
  const int64_t* tokens = row.tokens_T.const_data_ptr<int64_t>();
  const int64_t* labels = row.labels_T.const_data_ptr<int64_t>();
  const int64_t* positions = row.positions_T.const_data_ptr<int64_t>();
  const int64_t* documents = row.documents_T.const_data_ptr<int64_t>();
  int64_t* token = local.tokens_T.mutable_data_ptr<int64_t>();
  int64_t* label = local.labels_T.mutable_data_ptr<int64_t>();
  int64_t* position = local.positions_T.mutable_data_ptr<int64_t>();
  int64_t* document = local.documents_T.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < num_local; ++i) {
    const int64_t from = order.index[i];
    token[i] = from < 0 ? 0 : tokens[from];
    label[i] = from < 0 ? kIgnoreLabel : labels[from];
    position[i] = from < 0 ? 0 : positions[from];
    document[i] = from < 0 ? -1 : documents[from];
  }
  if (row.places_T.defined()) {
    local.places_T = empty_row(num_local);
    const int64_t* places = row.places_T.const_data_ptr<int64_t>();
    int64_t* place = local.places_T.mutable_data_ptr<int64_t>();
    for (const int64_t from : order.index) *place++ = from < 0 ? 0 : places[from];
  }
  return local;
}

at::Tensor token_keys(const Batch& batch) {
  const at::Tensor& places_T = batch.places_T.defined() ? batch.places_T : batch.positions_T;
  return batch.documents_T.mul(int64_t{1} << 32).add_(places_T);
}

int64_t count_labels(const Batch& batch) {
  const int64_t* labels = batch.labels_T.const_data_ptr<int64_t>();
  int64_t count = 0;
  for (int64_t i = 0; i < batch.labels_T.numel(); ++i) count += labels[i] != kIgnoreLabel;
  return count;
}

}  // namespace longspan
