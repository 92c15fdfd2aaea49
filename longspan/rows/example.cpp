#include "longspan/rows/example.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace longspan {

Batch collate_examples(const std::vector<const Example*>& examples) {
  std::vector<const Sample*> documents;
  for (const Example* example : examples) {
    for (const Sample& document : example->documents) documents.push_back(&document);
  }
  Batch batch = collate(documents);
  const bool restarts = std::ranges::any_of(
      examples, [](const Example* example) { return !example->position_restarts.empty(); });
  if (restarts && !batch.places_T.defined()) batch.places_T = batch.positions_T.clone();
  const int64_t num_axes = batch.positions_T.dim() == 2 ? batch.positions_T.size(0) : 1;
  const int64_t num_tokens = batch.packing.num_tokens();
  int64_t* position = batch.positions_T.mutable_data_ptr<int64_t>();
  batch.example_lengths.clear();
  for (const Example* example : examples) {
    int64_t length = 0;
    for (const Sample& document : example->documents) length += std::ssize(document.input_ids);
    batch.example_lengths.insert(batch.example_lengths.end(), example->documents.size(), length);
    // A document's own positions restart by themselves.
    const bool counted = std::ranges::none_of(
        example->documents, [](const Sample& document) { return document.positions_AT.defined(); });
    for (size_t i = 0; counted && i < example->position_restarts.size(); ++i) {
      const int64_t begin = example->position_restarts[i];
      const bool is_last = i + 1 == example->position_restarts.size();
      const int64_t end = is_last ? length : example->position_restarts[i + 1];
      for (int64_t axis = 0; axis < num_axes; ++axis) {
        for (int64_t at = begin; at < end; ++at) position[axis * num_tokens + at] = at - begin;
      }
    }
    position += length;
  }
  return batch;
}

}  // namespace longspan
