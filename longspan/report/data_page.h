// The data sets of a run as one page of HTML.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/report/data_survey.h"
#include "longspan/report/shown_examples.h"

namespace longspan {

struct DataPage {
  std::vector<std::pair<std::string, std::string>> facts;  // name and value, at the top
  const DataSurvey& survey;
  const std::vector<ShownExample>& examples;
  const std::vector<std::string>& notes;  // lines that training prints
  int64_t cutoff_len;
  int64_t num_examples;  // all training examples
};

/// The first bytes of each page.
inline constexpr const char* kPageBegin = "<!DOCTYPE html>\n<!-- longspan data -->\n";

/// Returns the page. It has no script and loads nothing. All texts of others are escaped.
std::string html_of(const DataPage& page);

/// Returns the text as HTML, through shown(): &, <, >, " and ' are written as references.
std::string escaped_html(std::string_view text);

}  // namespace longspan
