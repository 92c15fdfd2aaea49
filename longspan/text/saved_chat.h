// What the folder of a trained model says of chats. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// What differs from the folder that training started from.
struct SavedChat {
  struct Token {
    std::string text;
    int32_t id;
  };
  std::optional<std::string> chat_template;  // Jinja; nullopt: the folder's own stays
  std::optional<Token> eos;                  // ends an answer; nullopt: the folder's own stays
  std::optional<Token> pad;                  // nullopt: the same
  std::vector<int32_t> stop_ids;             // tokens that end an answer too
};

}  // namespace longspan
