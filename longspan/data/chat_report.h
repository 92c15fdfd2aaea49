// Counts chats whose template dropped thoughts (the reasoning before an answer), and answers
// without an end token. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/turns.h"

namespace longspan {

/// Counts over the chats of a data set. add() is thread-safe.
class ChatReport {
 public:
  /// Adds a chat. `trains_all_answers`: all answers are trained; otherwise only the last answer.
  /// `ends`: tokens that stop generation; empty: other code adds the end tokens later.
  void add(const std::vector<Turn>& turns, bool trains_all_answers, const std::set<int32_t>& ends,
           const Tokenizer& tokenizer);

  /// Returns sentences for the user; empty if there is nothing to report.
  std::vector<std::string> notes() const;

 private:
  mutable std::mutex mutex_;
  int64_t num_chats_ = 0;
  int64_t num_lost_thoughts_ = 0;  // chats
  int64_t num_open_earlier_ = 0;   // chats with an earlier answer that has no end
  int64_t num_open_last_ = 0;
  std::map<std::string, int64_t> added_;  // chats, by the added token
};

}  // namespace longspan
