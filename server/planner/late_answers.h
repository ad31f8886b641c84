// Measures how late a worker's answers are: the slack with which it would wait for none.
#ifndef CAUSEWAY_SERVER_PLANNER_LATE_ANSWERS_H_
#define CAUSEWAY_SERVER_PLANNER_LATE_ANSWERS_H_

#include <vector>

namespace causeway::server {

// Belongs to one worker. Answers that are late at the same time make one stretch.
class LateAnswers {
 public:
  LateAnswers() = default;
  LateAnswers(int fragments, double step_seconds);

  // The fragment's merge step has passed, and its answer is not there.
  void Begin(int fragment, double now);
  // The answer is there. If the stretch ends with it, returns the steps that the latest answer of
  // the stretch came after its merge step; else 0.
  int End(int fragment, double now);
  // Steps so far of a stretch that has not ended; 0: there is none.
  int Unfinished(double now) const;
  void Clear();

 private:
  int Steps(double seconds) const;

  double step_seconds_ = 1;
  std::vector<double> since_;  // By fragment; negative: not late.
  int late_ = 0;
  double longest_ = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_LATE_ANSWERS_H_
