#include "longspan/data/example.h"

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
  if (restarts) batch.places_T = batch.positions_T.clone();
  int64_t* position = batch.positions_T.mutable_data_ptr<int64_t>();
  for (const Example* example : examples) {
    int64_t length = 0;
    for (const Sample& document : example->documents) length += std::ssize(document.input_ids);
    for (size_t i = 0; i < example->position_restarts.size(); ++i) {
      const int64_t begin = example->position_restarts[i];
      const bool is_last = i + 1 == example->position_restarts.size();
      const int64_t end = is_last ? length : example->position_restarts[i + 1];
      for (int64_t at = begin; at < end; ++at) position[at] = at - begin;
    }
    position += length;
  }
  return batch;
}

}  // namespace longspan
