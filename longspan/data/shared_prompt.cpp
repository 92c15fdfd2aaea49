#include "longspan/data/shared_prompt.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace longspan {
namespace {

// How many tokens both begin with and predict no label from, so that they are the same to both.
int64_t num_shared(const Sample& a, const Sample& b) {
  const int64_t shorter = std::min(std::ssize(a.input_ids), std::ssize(b.input_ids));
  int64_t common = 0;
  while (common < shorter && a.input_ids[common] == b.input_ids[common] &&
         (common == 0 || (a.labels[common] == kIgnoreLabel && b.labels[common] == kIgnoreLabel))) {
    ++common;
  }
  return std::max<int64_t>(0, common - 1);
}

}  // namespace

Batch collate_shared(const std::vector<const Example*>& pairs) {
  std::vector<Document> documents;
  std::vector<const Sample*> samples;
  std::vector<int64_t> kept;  // tokens of the row of all documents in turn
  int64_t begin = 0;          // of a sample in that row
  for (const Example* pair : pairs) {
    TORCH_CHECK(pair->documents.size() == 2, "a pair has two documents, this one ",
                pair->documents.size());
    const Sample &chosen = pair->documents[0], &rejected = pair->documents[1];
    const int64_t shared = num_shared(chosen, rejected);
    const int64_t length = std::ssize(chosen.input_ids), rest = std::ssize(rejected.input_ids);
    if (shared > 0) {
      documents.push_back({length + rest - shared, Fork{shared, length}});
    } else {
      documents.insert(documents.end(), {{length}, {rest}});
    }
    for (int64_t i = 0; i < length; ++i) kept.push_back(begin + i);
    begin += length;
    for (int64_t i = shared; i < rest; ++i) kept.push_back(begin + i);
    begin += rest;
    samples.insert(samples.end(), {&chosen, &rejected});
  }
  Batch row = collate(samples);
  const at::Tensor index = at::tensor(at::ArrayRef<int64_t>(kept), at::TensorOptions(at::kLong));
  for (at::Tensor* x : {&row.tokens_T, &row.labels_T, &row.positions_T, &row.documents_T}) {
    *x = x->index_select(0, index);
  }
  row.packing = Packing::from_documents(documents);
  return row;
}

}  // namespace longspan
