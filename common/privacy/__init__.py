"""The privacy core that every mechanism shares.

============================ =====================================================================
module                       what it holds
============================ =====================================================================
`events`                     what a mechanism does to one record's privacy, as data
`accounting`                 event → (ε, δ), and the smallest noise that meets a budget
`filters`                    composition of adaptively chosen events under one budget
`clipping`                   one record's influence, bounded exactly and on an integer grid
`discrete_gaussian`          integer noise, and how far it is from the ideal
`entropy`                    where the randomness of noise comes from
`sampling`                   Poisson batches, from the same secret randomness
`privatise`                  the only way from clean sums to something that may leave
============================ =====================================================================
"""
