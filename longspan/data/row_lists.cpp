#include "longspan/data/row_lists.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/marked_chat.h"
#include "longspan/input/json_text.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

constexpr size_t kShownText = 60;

}  // namespace

std::string read_documents(const ordered_json& documents, const std::string& place) {
  ordered_json list = documents;
  if (documents.is_string()) {
    list = try_parse_ordered_json(documents.get<std::string>()).value_or(ordered_json());
  }
  if (list.is_null() && documents.is_null()) return "";
  bool fits = list.is_array();
  for (const ordered_json& document : list) {
    fits = fits && document.is_object() && !document.empty();
    if (!fits) break;
    for (const ordered_json& value : document) fits = fits && value.is_string();
  }
  if (!fits) {
    throw RowError(fmt::format(
        "{}: documents are a list of objects of texts ([{{\"title\": ..., \"text\": ...}}]), or "
        "one as JSON text; found {}",
        place, shortened(documents.dump(), kShownText)));
  }
  return list.empty() ? "" : python_json(list);
}

RowLists lists_of(const Conversation& row) { return {row.tools, row.documents}; }

void set_lists(ordered_json& variables, const RowLists& lists, const std::string& place) {
  if (!lists.tools.empty()) variables["tools"] = parse_ordered_json(lists.tools, place);
  if (!lists.documents.empty()) variables["documents"] = parse_ordered_json(lists.documents, place);
}

MarkedLists marked_lists(const RowLists& lists, std::string_view others, const std::string& place) {
  MarkedLists marked;
  ordered_json tools = ordered_json::array(), documents = ordered_json::array();
  if (!lists.tools.empty()) tools = parse_ordered_json(lists.tools, place);
  if (!lists.documents.empty()) documents = parse_ordered_json(lists.documents, place);
  std::vector<ordered_json*> texts;
  for (ordered_json& tool : tools) {
    texts.push_back(&tool.at("function").at("name"));
    marked.texts.push_back(
        {"", fmt::format("tools of the row ({})",
                         shortened(texts.back()->get<std::string>(), kShownText))});
  }
  for (ordered_json& document : documents) {
    for (auto&& [key, text] : document.items()) {
      texts.push_back(&text);
      marked.texts.push_back(
          {"", fmt::format("documents of the row ({}: {})", shortened(key, kShownText),
                           shortened(text.get<std::string>(), kShownText))});
    }
  }
  const std::vector<std::string> marks =
      free_characters(texts.size(), lists.tools + lists.documents + std::string(others));
  for (size_t i = 0; i < texts.size(); ++i) {
    *texts[i] = texts[i]->get<std::string>() + marks[i];
    marked.texts[i].mark = marks[i];
  }
  if (!tools.empty()) marked.lists.tools = tools.dump();
  if (!documents.empty()) marked.lists.documents = documents.dump();
  return marked;
}

}  // namespace longspan
