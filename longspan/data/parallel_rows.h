// Parallel work on the rows of a dataset. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/settings/data_settings.h"

namespace longspan {

/// Calls work(0), ..., work(num_rows - 1), each once, in preprocessing_num_workers threads (not
/// set: in this thread; `longspan train` sets the key to the number of cores). Where several throw,
/// rethrows the exception of the first such row, whatever the timing.
void for_each_row_in_parallel(const DataSettings& config, int64_t num_rows,
                              const std::function<void(int64_t)>& work);

/// The same, but returns the RowErrors' messages by row; "" for a good row.
std::vector<std::string> problems_of_rows(const DataSettings& config, int64_t num_rows,
                                          const std::function<void(int64_t)>& work);

}  // namespace longspan
