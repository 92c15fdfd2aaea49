// Chat settings in the folder of a trained model. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// The chat settings that differ from the settings in the folder that training started from.
struct SavedChat {
  struct Token {
    std::string text;
    int32_t id;
  };
  std::optional<std::string> chat_template;  // Jinja; nullopt: the folder's own
  std::optional<Token> eos;                  // ends an answer; nullopt: the folder's own
  std::optional<Token> pad;                  // nullopt: the folder's own
  std::vector<int32_t> stop_ids;             // other tokens that end an answer
};

}  // namespace longspan
