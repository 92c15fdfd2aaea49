// Counts keys of rows and messages that no code reads. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longspan {

class UnreadKeys {
 public:
  /// Counts each key of an object that is not in `read` and whose value is not empty (null, "", []
  /// or {}). `what`: the kind of object: "row", "message", "call".
  void add(const nlohmann::ordered_json& object, const std::vector<std::string>& read,
           std::string_view what);
  void add(const std::string& key, std::string_view what, int64_t count = 1);
  void add(const UnreadKeys& others);

  /// Returns e.g. "2 keys are not read: meta (7 rows), score (1 message)"; "" if there are no
  /// unread keys.
  std::string text() const;

 private:
  struct Key {
    std::string name, what;
    int64_t count;
  };
  std::vector<Key> keys_;                           // in the order of their first occurrence
  std::unordered_map<std::string, size_t> places_;  // by what and name
};

}  // namespace longspan
