// A count of thoughts that templates left out of a data set's chats, and of answers without an end.
// No torch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/turns.h"

namespace longspan {

/// Counted over the chats of a data set, by several threads at once.
class ChatReport {
 public:
  /// A chat in which all answers are trained, or the last alone. `ends`: tokens by which generation
  /// stops; empty: the answers have ends that are not in the turns.
  void add(const std::vector<Turn>& turns, bool trains_all_answers, const std::set<int32_t>& ends,
           const Tokenizer& tokenizer);

  /// Sentences for people; empty where there is nothing to say.
  std::vector<std::string> notes() const;

 private:
  mutable std::mutex mutex_;
  int64_t num_chats_ = 0;
  int64_t num_lost_thoughts_ = 0;  // chats
  int64_t num_open_earlier_ = 0;   // chats with an answer, not the last, that has no end
  int64_t num_open_last_ = 0;
  std::map<std::string, int64_t> added_;  // chats by the token that was added
};

}  // namespace longspan
