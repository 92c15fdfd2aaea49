#include "longspan/rows/shared_prompt.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace longspan {
namespace {

// The number of equal tokens at the beginning, among the first `count`.
int64_t num_equal(const at::Tensor& a, const at::Tensor& b, int64_t dim, int64_t count) {
  if (count == 0) return 0;
  const at::Tensor differ = a.narrow(dim, 0, count).ne(b.narrow(dim, 0, count));
  const at::Tensor tokens = differ.movedim(dim, 0).reshape({count, -1}).any(1).nonzero();
  return tokens.size(0) == 0 ? count : tokens[0][0].item<int64_t>();
}

// The number of tokens, among the first `count`, before the first feature of a picture that the
// samples do not share.
int64_t num_before_other_pictures(const Sample& a, const Sample& b, int64_t count) {
  int64_t features = 0;
  for (size_t i = 0; i < std::min(a.pictures.size(), b.pictures.size()); ++i) {
    if (a.pictures[i] != b.pictures[i]) break;
    features += a.pictures[i].num_features;
  }
  const auto column = a.columns.find(kFeatureColumn);
  if (column == a.columns.end() || a.pictures == b.pictures) return count;
  const at::Tensor own = column->second.values.narrow(0, 0, count).ge(features).nonzero();
  return own.size(0) == 0 ? count : own[0][0].item<int64_t>();
}

// The number of tokens at the beginning that are the same in both, with all their data, and that
// predict no label.
int64_t num_shared(const Sample& a, const Sample& b) {
  const int64_t shorter = std::min(std::ssize(a.input_ids), std::ssize(b.input_ids));
  int64_t common = 0;
  while (common < shorter && a.input_ids[common] == b.input_ids[common] &&
         (common == 0 || (a.labels[common] == kIgnoreLabel && b.labels[common] == kIgnoreLabel))) {
    ++common;
  }
  for (const auto& [name, column] : a.columns) {
    common = num_equal(column.values, b.columns.at(name).values, 0, common);
  }
  common = num_before_other_pictures(a, b, common);
  if (a.positions_AT.defined() && b.positions_AT.defined()) {
    common = num_equal(a.positions_AT, b.positions_AT, 1, common);
  } else if (a.positions_AT.defined() || b.positions_AT.defined()) {
    common = 0;
  }
  int64_t shared = std::max<int64_t>(0, common - 1);
  // A two-way span is shared whole, or is in each branch.
  for (const Sample* sample : {&a, &b}) {
    for (const auto& [begin, end] : two_way_spans(*sample)) {
      if (begin < shared && shared < end) shared = begin;
    }
  }
  return shared;
}

}  // namespace

Batch collate_shared(const std::vector<const Example*>& pairs) {
  std::vector<Document> documents;
  std::vector<const Sample*> samples;
  std::vector<int64_t> index;  // into the concatenation of all documents
  int64_t begin = 0;           // of a sample in it
  for (const Example* pair : pairs) {
    TORCH_CHECK(pair->documents.size() == 2, "a pair has two documents, this one ",
                pair->documents.size());
    const Sample &chosen = pair->documents[0], &rejected = pair->documents[1];
    check_alike({&chosen, &rejected});
    const int64_t shared = num_shared(chosen, rejected);
    const int64_t length = std::ssize(chosen.input_ids), rest = std::ssize(rejected.input_ids);
    std::vector<TwoWaySpan> first = two_way_spans(chosen), second = two_way_spans(rejected);
    if (shared > 0) {
      for (const auto& [begin, end] : second) {
        if (begin >= shared) first.push_back({begin + length - shared, end + length - shared});
      }
      documents.push_back({length + rest - shared, Fork{shared, length}, first});
    } else {
      documents.insert(documents.end(), {{length, {}, first}, {rest, {}, second}});
    }
    for (int64_t i = 0; i < length; ++i) index.push_back(begin + i);
    begin += length;
    for (int64_t i = shared; i < rest; ++i) index.push_back(begin + i);
    begin += rest;
    samples.insert(samples.end(), {&chosen, &rejected});
  }
  return take(collate(samples), index, Packing::from_documents(documents));
}

}  // namespace longspan
