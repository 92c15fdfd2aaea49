// sft: packs several samples into a row.
#include <algorithm>
#include <map>
#include <utility>

#include "longspan/data/stage_encoders.h"

namespace longspan {

std::vector<std::vector<int64_t>> best_fit(const std::vector<int64_t>& lengths,
                                           int64_t row_length) {
  std::map<int64_t, std::vector<int64_t>> by_length;
  for (int64_t i = 0; i < std::ssize(lengths); ++i) by_length[lengths[i]].push_back(i);
  std::vector<std::vector<int64_t>> rows;
  while (!by_length.empty()) {
    std::vector<int64_t>& row = rows.emplace_back();
    int64_t room = row_length;
    for (auto next = by_length.upper_bound(room); next != by_length.begin();
         next = by_length.upper_bound(room)) {
      const auto longest = std::prev(next);
      room -= longest->first;
      row.push_back(longest->second.back());  // the last of equally long ones, as in LLaMA-Factory
      longest->second.pop_back();
      if (longest->second.empty()) by_length.erase(longest);
    }
  }
  return rows;
}

Example packed_example(const std::vector<int64_t>& row,
                       const std::function<Sample(int64_t)>& sample, bool neat) {
  Example example;
  std::vector<Sample> parts;
  for (const int64_t i : row) parts.push_back(sample(i));
  if (neat || row.size() == 1) {
    example.documents = std::move(parts);
    return example;
  }
  std::vector<const Sample*> all;
  int64_t length = 0;
  for (const Sample& part : parts) {
    if (length > 0) example.position_restarts.push_back(length);
    length += std::ssize(part.input_ids);
    all.push_back(&part);
  }
  example.documents.push_back(joined(all));
  return example;
}

PackingReport report_of_packing(const std::vector<int64_t>& lengths, int64_t row_length,
                                int64_t num_rows) {
  PackingReport report{
      .rows_before = std::ssize(lengths), .rows_after = num_rows, .row_length = row_length};
  for (const int64_t length : lengths) report.tokens_before += length;
  report.tokens_after = report.tokens_before;
  return report;
}

EncodedExamples pack_samples(std::vector<Sample> samples, int64_t row_length, bool neat) {
  std::vector<int64_t> lengths;
  for (const Sample& sample : samples) lengths.push_back(std::ssize(sample.input_ids));
  EncodedExamples packed;
  const auto take = [&](int64_t i) { return std::exchange(samples[i], {}); };
  for (const std::vector<int64_t>& row : best_fit(lengths, row_length)) {
    packed.examples.push_back(packed_example(row, take, neat));
  }
  packed.packing = report_of_packing(lengths, row_length, std::ssize(packed.examples));
  return packed;
}

}  // namespace longspan
