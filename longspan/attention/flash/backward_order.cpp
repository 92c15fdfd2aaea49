#include "longspan/attention/flash/backward_order.h"

#include <algorithm>
#include <utility>

namespace longspan::flash {
namespace {

void wait_until(const std::atomic<int32_t>& count, int32_t value) {
  for (int32_t now = count.load(std::memory_order_acquire); now != value;
       now = count.load(std::memory_order_acquire)) {
    count.wait(now, std::memory_order_acquire);
  }
}

void add_one(std::atomic<int32_t>& count) {
  count.fetch_add(1, std::memory_order_release);
  count.notify_all();
}

int64_t end_of_tile(const Task& task, int64_t query) {
  return std::min(query + kQueryTile, task.q_length);
}

}  // namespace

BackwardOrder::BackwardOrder(std::vector<Block> blocks, int64_t num_queries, int64_t num_kv_heads)
    : num_cells_((num_queries + kQueryTile - 1) / kQueryTile), num_kv_heads_(num_kv_heads) {
  for (Block& block : blocks) block = trimmed(block);
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.k_begin < b.k_begin; });
  std::vector<int32_t> adders_of_cell(num_cells_, 0);
  for (const Block& block : blocks) {
    if (block.q_length > 0) add_run(block, adders_of_cell);
  }
  turns_ = std::make_unique<Count[]>(num_cells_ * num_kv_heads);
  done_ = std::make_unique<Count[]>(tasks_.size() * num_kv_heads);
}

void BackwardOrder::add_run(const Block& block, std::vector<int32_t>& adders_of_cell) {
  Run run{block, std::ssize(tasks_), 0, block.q_begin / kQueryTile, {}, {}, {}};
  const int64_t cells_end = (block.q_begin + block.q_length - 1) / kQueryTile + 1;
  std::vector<int32_t> begins_at(cells_end - run.first_cell, 0), ends_at = begins_at;
  for (int64_t key = 0; key < block.k_length; key += kKeyTile) {
    if (block.causal && key >= block.q_length + block.offset) break;  // no query sees these keys
    const int64_t count = std::min(kKeyTile, block.k_length - key);
    int64_t q_length = block.q_length;
    if (block.lower) {  // up to the tile of the last query that sees the last key
      const int64_t seeing = key + count - *block.lower;
      q_length = std::min(q_length, (seeing + kQueryTile - 1) / kQueryTile * kQueryTile);
    }
    const Task task{0,
                    block.q_begin,
                    q_length,
                    block.k_begin + key,
                    count,
                    block.offset - key,
                    block.lower ? *block.lower - key : kNoLowerEnd,
                    block.causal,
                    std::ssize(tasks_)};
    begins_at[(block.q_begin + first_query(task)) / kQueryTile - run.first_cell] += 1;
    ends_at[(block.q_begin + q_length - 1) / kQueryTile - run.first_cell] += 1;
    tasks_.push_back(task);
    run_of_task_.push_back(runs_.size());
    run.num_tasks += 1;
  }
  // A task adds to all cells from its first to its last. Later tasks neither begin nor end before
  // it.
  int32_t adders = 0;
  int64_t first_adder = run.first_task;
  for (int64_t cell = run.first_cell; cell < cells_end; ++cell) {
    adders += begins_at[cell - run.first_cell];
    run.before.push_back(adders_of_cell[cell]);
    run.first_adder.push_back(first_adder);
    adders_of_cell[cell] += adders;
    adders -= ends_at[cell - run.first_cell];
    first_adder += ends_at[cell - run.first_cell];
  }
  for (size_t i = 0; block.k_begin < keys_end_ && i < runs_.size(); ++i) {
    if (runs_[i].block.k_begin + runs_[i].block.k_length > block.k_begin) {
      run.shares_keys_with.push_back(i);
    }
  }
  keys_end_ = std::max(keys_end_, block.k_begin + block.k_length);
  runs_.push_back(std::move(run));
}

BackwardOrder::Count& BackwardOrder::turn(const Task& task, int64_t cell) {
  return turns_[task.kv_head * num_cells_ + cell];
}

int32_t BackwardOrder::number_at(const Task& task, int64_t cell) const {
  const Run& run = run_of(task);
  return run.before[cell - run.first_cell] +
         static_cast<int32_t>(task.number - run.first_adder[cell - run.first_cell]);
}

void BackwardOrder::wait_for_queries(const Task& task, int64_t query) {
  const int64_t last = (task.q_begin + end_of_tile(task, query) - 1) / kQueryTile;
  for (int64_t cell = (task.q_begin + query) / kQueryTile; cell <= last; ++cell) {
    wait_until(turn(task, cell), number_at(task, cell));
  }
}

void BackwardOrder::pass_queries_on(const Task& task, int64_t query) {
  const int64_t first = (task.q_begin + query) / kQueryTile, end = end_of_tile(task, query);
  // Tiles may begin anywhere in a cell, so the next tile may still add to the last cell of this
  // tile.
  const int64_t last = end < task.q_length ? first : (task.q_begin + end - 1) / kQueryTile;
  for (int64_t cell = first; cell <= last; ++cell) add_one(turn(task, cell));
}

void BackwardOrder::wait_for_keys(const Task& task) {
  for (const size_t earlier : run_of(task).shares_keys_with) {
    const Run& run = runs_[earlier];
    const int64_t begin = (task.k_begin - run.block.k_begin) / kKeyTile,
                  last = (task.k_begin + task.k_length - 1 - run.block.k_begin) / kKeyTile;
    for (int64_t tile = begin; tile <= std::min(last, run.num_tasks - 1); ++tile) {
      wait_until(done_[(run.first_task + tile) * num_kv_heads_ + task.kv_head], 1);
    }
  }
}

void BackwardOrder::pass_keys_on(const Task& task) {
  add_one(done_[task.number * num_kv_heads_ + task.kv_head]);
}

Turns BackwardOrder::turns() {
  return {this,
          [](void* order, const Task& task, int64_t query) {
            static_cast<BackwardOrder*>(order)->wait_for_queries(task, query);
          },
          [](void* order, const Task& task, int64_t query) {
            static_cast<BackwardOrder*>(order)->pass_queries_on(task, query);
          },
          [](void* order, const Task& task) {
            static_cast<BackwardOrder*>(order)->wait_for_keys(task);
          },
          [](void* order, const Task& task) {
            static_cast<BackwardOrder*>(order)->pass_keys_on(task);
          }};
}

}  // namespace longspan::flash
