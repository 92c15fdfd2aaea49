#include "longspan/stages/kept_logprobs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <sstream>

#include "longspan/base/user_error.h"
#include "longspan/rows/batch.h"

namespace longspan {
namespace {

constexpr int kDigits = 16;  // of a double's bits

/// Returns the tokens of the row with this rank's labels, [L] int64 on the CPU.
at::Tensor own_places(const Row& row, const SequenceParallel& attention) {
  const TokenOrder order = attention.token_order(row.whole.packing);
  return at::tensor(order.index, at::kLong).index_select(0, label_rows(row.local).cpu());
}

/// Calls visit(example, labels of the example in the whole row), in row order. A row's examples
/// follow each other, and so do the indices of their documents.
template <typename Visit>
void for_each_example(const Row& row, const Visit& visit) {
  const at::Tensor labels_L = label_rows(row.whole);
  const int64_t* places = labels_L.const_data_ptr<int64_t>();
  const int64_t* documents = row.whole.documents_T.const_data_ptr<int64_t>();
  int64_t begin = 0, first_document = 0;
  for (const ExamplePointer& example : row.examples) {
    first_document += std::ssize(example->documents);
    int64_t end = begin;
    while (end < labels_L.numel() && documents[places[end]] < first_document) ++end;
    visit(*example, std::span<const int64_t>(places + begin, places + end));
    begin = end;
  }
}

}  // namespace

void KeptLogprobs::keep(const Row& row, const at::Tensor& values_L,
                        const SequenceParallel& attention, const Group& sequence) {
  const at::Tensor places_L = own_places(row, attention).to(values_L.device());
  const at::Tensor all_T = at::zeros({row.whole.tokens_T.numel()}, values_L.options())
                               .index_copy_(0, places_L, values_L);
  sequence.sum_(all_T);
  const at::Tensor here_T = all_T.cpu();
  for_each_example(row, [&](const Example& example, std::span<const int64_t> places) {
    std::vector<double>& values = values_[example.number];
    values.clear();
    for (const int64_t place : places) values.push_back(here_T.const_data_ptr<double>()[place]);
  });
}

bool KeptLogprobs::has(const Row& row) const {
  return std::ranges::all_of(row.examples, [&](const ExamplePointer& example) {
    return values_.contains(example->number);
  });
}

at::Tensor KeptLogprobs::of(const Row& row, const SequenceParallel& attention) const {
  const at::Tensor all_T = at::zeros({row.whole.tokens_T.numel()}, at::kDouble);
  for_each_example(row, [&](const Example& example, std::span<const int64_t> places) {
    const std::vector<double>& values = values_.at(example.number);
    TORCH_CHECK(values.size() == places.size(), "kept log-probabilities of other labels");
    for (size_t i = 0; i < places.size(); ++i) {
      all_T.mutable_data_ptr<double>()[places[i]] = values[i];
    }
  });
  return all_T.index_select(0, own_places(row, attention)).to(row.local.tokens_T.device());
}

std::string KeptLogprobs::text(const Mesh& mesh) const {
  std::string own;
  if (mesh.sequence.rank() == 0) {
    for (const auto& [number, values] : values_) {
      own += fmt::format("{} ", number);
      for (const double value : values)
        own += fmt::format("{:016x}", std::bit_cast<uint64_t>(value));
      own += "\n";
    }
  }
  std::string all;
  for (const std::string& text : mesh.world.gather_text(own)) all += text;
  return all;
}

void KeptLogprobs::load(const std::string& text) {
  values_.clear();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    int64_t number = 0;
    const auto number_end =
        std::from_chars(line.data(), line.data() + std::min(space, line.size()), number);
    const size_t num_digits = space == std::string::npos ? 1 : line.size() - space - 1;
    bool is_good = number_end.ec == std::errc() && num_digits % kDigits == 0;
    std::vector<double>& values = values_[number];
    for (size_t at = space + 1; is_good && at < line.size(); at += kDigits) {
      uint64_t bits = 0;
      const char* end = line.data() + at + kDigits;
      const auto read = std::from_chars(line.data() + at, end, bits, 16);
      is_good = read.ec == std::errc() && read.ptr == end;
      values.push_back(std::bit_cast<double>(bits));
    }
    if (!is_good) {
      throw UserError(
          "the checkpoint's log-probabilities of rollouts are broken; resume from "
          "another checkpoint");
    }
  }
}

}  // namespace longspan
