// The data sets of a run as text for a terminal.
#pragma once

#include <string>
#include <vector>

#include "longspan/report/data_survey.h"
#include "longspan/report/shown_examples.h"
#include "longspan/text/styled.h"

namespace longspan {

/// Returns the table of the data sets, the lengths of each data set, and packing.
std::vector<StyledText> numbers_as_text(const DataSurvey& survey, int64_t cutoff_len);
std::vector<StyledText> warnings_as_text(const std::vector<std::string>& warnings);
std::vector<StyledText> example_as_text(const ShownExample& example);

/// Returns what packing makes: rows, and their empty places.
std::string packing_text(const PackedRows& packed);
/// "321 tokens, 120 of them trained (37.4 %)"
std::string tokens_text(const ShownDocument& document);

}  // namespace longspan
