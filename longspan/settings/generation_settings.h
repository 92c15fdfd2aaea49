// Answers to the rows of evaluation (predict_with_generate). No torch.
#pragma once

#include <cstdint>

namespace longspan {

struct GenerationSettings {
  bool do_predict = false;             // at the end, with the answers in a file
  bool predict_with_generate = false;  // evaluations compare answers with those of the rows
  bool do_sample = true;               // false: the likeliest token
  double temperature = 0.95, top_p = 0.7, repetition_penalty = 1.0;
  int64_t top_k = 50, max_new_tokens = 1024;
  bool skip_special_tokens = true;  // in the file of answers
};

}  // namespace longspan
