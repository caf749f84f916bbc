"""Li, He, Ren and Mao, *Data Fine-Pruning: A Simple Way to Accelerate Neural Network Training*, 2019."""
