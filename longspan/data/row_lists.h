// The lists of a row that the model's own chat template gets beside the messages. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

/// Reads a row's documents: a list of objects of texts, as transformers' apply_chat_template takes
/// it, or such a list as JSON text. Returns Conversation::documents; "" for an empty list. Throws
/// RowError with `place`.
std::string read_documents(const nlohmann::ordered_json& documents, const std::string& place);

/// JSON lists; "" for no list.
struct RowLists {
  std::string tools, documents;
  bool empty() const { return tools.empty() && documents.empty(); }
};
RowLists lists_of(const Conversation& row);

/// Sets the variables `tools` and `documents` of a chat template.
void set_lists(nlohmann::ordered_json& variables, const RowLists& lists, const std::string& place);

/// The lists with a mark behind each text that a template must print: names of tools, texts of
/// documents.
struct MarkedLists {
  struct Text {
    std::string mark;
    std::string what;  // "tools of the row (weather)"
  };
  RowLists lists;
  std::vector<Text> texts;
};
/// `others`: no mark is one of its characters.
MarkedLists marked_lists(const RowLists& lists, std::string_view others, const std::string& place);

}  // namespace longspan
