#include "longspan/data/parallel_rows.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "longspan/data/bad_rows.h"

namespace longspan {

void for_each_row_in_parallel(const DataSettings& config, int64_t num_rows,
                              const std::function<void(int64_t)>& work) {
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_row = num_rows;
  std::atomic<int64_t> next{0};
  const auto take_rows = [&] {
    for (int64_t i = next++; i < num_rows; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < error_row) {
          error_row = i;
          error = std::current_exception();
        }
        next = num_rows;  // rows are taken in order, so earlier rows have been taken
      }
    }
  };
  const int64_t num_threads = config.preprocessing_num_workers.value_or(1);
  std::vector<std::jthread> threads;
  try {
    for (int64_t i = 1; i < std::min(num_threads, num_rows); ++i) threads.emplace_back(take_rows);
  } catch (const std::system_error&) {
    // The system has no more threads. The started ones do the work.
  }
  take_rows();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

std::vector<RowProblem> problems_of_rows(const DataSettings& config, int64_t num_rows,
                                         const std::function<void(int64_t)>& work) {
  std::vector<RowProblem> problems(num_rows);
  for_each_row_in_parallel(config, num_rows, [&](int64_t i) {
    try {
      work(i);
    } catch (const RowError& error) {
      problems[i] = {error.what(), dynamic_cast<const NothingTrained*>(&error) != nullptr};
    }
  });
  return problems;
}

}  // namespace longspan
