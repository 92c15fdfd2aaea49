// Parallel work on the rows of a dataset. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/settings/data_settings.h"

namespace longspan {

/// Calls work(0), ..., work(num_rows - 1), each once, in preprocessing_num_workers threads (not
/// set: in this thread; `longspan train` sets the key to the number of cores). If several calls
/// throw, rethrows the exception of the first of these rows, independent of timing.
void for_each_row_in_parallel(const DataSettings& config, int64_t num_rows,
                              const std::function<void(int64_t)>& work);

/// The message of a RowError; "": no error.
struct RowProblem {
  std::string text;
  bool nothing_trained = false;
};
/// Does the same as for_each_row_in_parallel(), but returns the RowErrors by row.
std::vector<RowProblem> problems_of_rows(const DataSettings& config, int64_t num_rows,
                                         const std::function<void(int64_t)>& work);

}  // namespace longspan
