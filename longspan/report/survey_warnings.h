// Sentences on likely mistakes in data sets, by their numbers.
#pragma once

#include <cstdint>

#include "longspan/report/data_survey.h"

namespace longspan {

/// Sets DataSurvey::cutoffs: powers of two, the configured cutoff_len and the longest example.
void add_cutoffs(const SurveyedData& data, DataSurvey& survey);

/// Adds DataSurvey::warnings. `num_leaked`: evaluation examples that are training examples, too.
void add_warnings(const SurveyedData& data, int64_t num_leaked, DataSurvey& survey);

}  // namespace longspan
