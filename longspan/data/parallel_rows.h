// Work on the rows of a dataset in several threads. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/config/data_settings.h"

namespace longspan {

/// Calls work(0), ..., work(num_rows - 1), each once, in preprocessing_num_workers threads (left
/// out: in this one; `longspan train` then gives the number of cores). When some throw, rethrows
/// the exception of the first such row, whatever thread met which row first.
void for_each_row_in_parallel(const DataSettings& config, int64_t num_rows,
                              const std::function<void(int64_t)>& work);

/// The same, but what work(i) throws as RowError is row i's own: returned by row, "" where all is
/// well.
std::vector<std::string> problems_of_rows(const DataSettings& config, int64_t num_rows,
                                          const std::function<void(int64_t)>& work);

}  // namespace longspan
