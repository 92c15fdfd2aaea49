// sft: packs several samples into a row.
#include <algorithm>
#include <map>

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

EncodedExamples pack_samples(std::vector<Sample> samples, int64_t row_length, bool neat) {
  std::vector<int64_t> lengths;
  for (const Sample& sample : samples) lengths.push_back(std::ssize(sample.input_ids));
  EncodedExamples packed;
  PackingReport& report = packed.packing.emplace();
  report.row_length = row_length;
  report.rows_before = std::ssize(samples);
  for (const int64_t length : lengths) report.tokens_before += length;
  for (const std::vector<int64_t>& row : best_fit(lengths, row_length)) {
    Example& example = packed.examples.emplace_back();
    if (neat || row.size() == 1) {
      for (const int64_t i : row) example.documents.push_back(std::move(samples[i]));
      continue;
    }
    std::vector<const Sample*> parts;
    int64_t length = 0;
    for (const int64_t i : row) {
      if (length > 0) example.position_restarts.push_back(length);
      length += lengths[i];
      parts.push_back(&samples[i]);
    }
    example.documents.push_back(joined(parts));
    for (const int64_t i : row) samples[i] = {};  // frees its memory
  }
  report.rows_after = std::ssize(packed.examples);
  report.tokens_after = report.tokens_before;
  return packed;
}

}  // namespace longspan
