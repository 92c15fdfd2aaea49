// The order in which tasks of the flash backward add to shared gradients.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/flash/flash_tasks.h"

namespace longspan::flash {

/// A task is a tile of keys with all queries that see a key of the tile. Any number of tasks may
/// run concurrently, provided that tasks begin in order. A task adds to an element of dq, dk or dv
/// after all earlier tasks that add to this element. Tasks wait for earlier tasks only, so there is
/// no deadlock. No thread needs a separate copy of the gradients, and sums do not depend on the
/// number of threads. Concurrent neighbouring tasks stay one query tile apart.
class BackwardOrder {
 public:
  BackwardOrder(std::vector<Block> blocks, int64_t num_queries, int64_t num_kv_heads);

  /// Returns the tasks of kv head 0. The tasks of the other kv heads have the same numbers.
  const std::vector<Task>& tasks() const { return tasks_; }
  Turns turns();

 private:
  struct Run {  // the tasks of one block
    Block block;
    int64_t first_task, num_tasks;
    int64_t first_cell;
    // [cell - first_cell]: number of tasks of earlier runs that add to the cell.
    std::vector<int32_t> before;
    std::vector<int64_t> first_adder;      // [cell - first_cell]: first task of this run that adds
    std::vector<size_t> shares_keys_with;  // earlier runs
  };
  using Count = std::atomic<int32_t>;

  void add_run(const Block& block, std::vector<int32_t>& adders_of_cell);
  const Run& run_of(const Task& task) const { return runs_[run_of_task_[task.number]]; }
  Count& turn(const Task& task, int64_t cell);
  int32_t number_at(const Task& task, int64_t cell) const;
  void wait_for_queries(const Task& task, int64_t query);
  void pass_queries_on(const Task& task, int64_t query);
  void wait_for_keys(const Task& task);
  void pass_keys_on(const Task& task);

  std::vector<Task> tasks_;
  std::vector<Run> runs_;
  std::vector<size_t> run_of_task_;
  int64_t keys_end_ = 0;              // end of the keys of the runs so far
  int64_t num_cells_, num_kv_heads_;  // a cell: kQueryTile queries of one kv head
  std::unique_ptr<Count[]> turns_;    // [kv head, cell]: number of tasks that have added
  std::unique_ptr<Count[]> done_;     // [task, kv head]: 1 after the task has added to dk and dv
};

}  // namespace longspan::flash
