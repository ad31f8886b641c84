// Bugs that a coordinator could have, planted around a real one, to show what would find them.
#ifndef CAUSEWAY_TESTS_SIMULATION_PLANTED_BUGS_H_
#define CAUSEWAY_TESTS_SIMULATION_PLANTED_BUGS_H_

#include <memory>

#include "server/core/coordinator.h"

namespace causeway::simulation {

// A contribution counts again in the next round of its fragment.
std::unique_ptr<server::Coordinator> AppliesTwice(std::unique_ptr<server::Coordinator> real);

// A push is taken for one of the present incarnation, whatever it says.
std::unique_ptr<server::Coordinator> AcceptsStaleIncarnations(
    std::unique_ptr<server::Coordinator> real);

}  // namespace causeway::simulation

#endif  // CAUSEWAY_TESTS_SIMULATION_PLANTED_BUGS_H_
